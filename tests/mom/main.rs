//! Our installed files under the moms of Torque and OpenPBS, each run as its mom runs it.

mod agent;
mod assertions;
mod both;
mod classic;
mod install;
mod openpbs;
mod selftest;
mod starter;
mod tasks;
mod torque;
mod torque_failures;
