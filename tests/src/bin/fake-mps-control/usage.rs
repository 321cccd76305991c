//! The help text, as recorded.

/// What `-h` prints.
pub const TEXT: &str = r#"CUDA MPS Control for Linux/Unix/QNX.
Copyright (C) 2003 - 2025 NVIDIA Corporation.

  This program allows multiple CUDA processes to share a single GPU context. For information on how to use the CUDA MPS, see the nvidia-cuda-mps-control manual page.

nvidia-cuda-mps-control [options] [command]
OPTIONS:
  -h,--help                Print this message
  -d,--daemon              Setup the daemon in the background
  -f,--forground           Setup the daemon in the foreground
  -M,--multiuser-server    Enable multi-user mode
  -q,--ready-devices      Prepare the daemon to query devices on startup

COMMAND:
  start_server -uid <user id>
                       Start a new instance of nvidia-cuda-mps-server with the given user ID
  quit
                       Terminate the controller
  get_server_list
                       Print out a list of servers
  get_server_status <PID>
                       Print out the status of the server
  get_client_list <PID>
                       List the client applications connected to the server
  get_device_client_list [<PID>]
                       List the devices and their client applications
  ps [-p PID]
                       Report a snapshot of the current client processes
  set_default_active_thread_percentage <percentage>
                       Set default active thread percentage for upcoming servers
  get_default_active_thread_percentage
                       Query the current default available thread percentage
  set_active_thread_percentage <PID> <percentage>
                       Override the active thread percentage of the MPS server
  get_active_thread_percentage <PID>
                       Query the current active thread percentage of the MPS server
  set_default_device_pinned_mem_limit <dev> <value>
                       Set default device pinned memory for upcoming servers
  get_default_device_pinned_mem_limit <dev>
                       Query the current default pinned memory limit for the device
  set_device_pinned_mem_limit <PID> <dev> <value>
                       Override the device pinned memory limit for MPS servers
  get_device_pinned_mem_limit <PID> <dev>
                       Query the current device pinned memory limit of the MPS server for the device
  set_default_client_priority <priority>
                       Sets default client priority for incoming clients
  get_default_client_priority
                       Query the current priority value that will be used for new clients
  terminate_client <server PID> <client PID>
                       Terminate all the outstanding GPU work of the MPS client process running on the MPS server
  device_query [<PID>] [--csv]
                       Enumerate all usable devices

"#;
