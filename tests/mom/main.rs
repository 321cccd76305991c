//! Our installed files under simulated moms of Torque and OpenPBS, which run them as the real ones
//! do.

mod alone;
mod auto;
mod both;
mod install;
mod jobs;
mod openpbs;
mod scripts;
mod selftest;
mod shared;
mod shares;
mod starter;
mod torque;
mod unasked;
