//! Our installed files under the moms of Torque and OpenPBS, each run as its mom runs it.

mod agent;
mod auto;
mod both;
mod classic;
mod install;
mod jobs;
mod openpbs;
mod selftest;
mod shared;
mod starter;
mod torque;
