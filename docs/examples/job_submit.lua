-- Who may ask for MPS, by slurmctld: 'JobSubmitPlugins=lua' in slurm.conf, this file beside it. Slurm hands over the flags
-- of srun, sbatch and salloc in spank_job_env. Here jobs of the partition "debug" may not ask.

local function asks_for_mps(job)
   for _, variable in pairs(job.spank_job_env or {}) do
      local mode = variable:match("^_SLURM_SPANK_OPTION_mps_mps=(.*)$")
      if mode and mode ~= "off" then
         return true
      end
   end
   return false
end

-- Without --partition a job has no partition yet; with several it has a list.
local function may_be_in(name, job, partitions)
   local named = job.partition or ""
   for _, partition in pairs(partitions) do
      if not job.partition and partition.flag_default == 1 then
         named = partition.name
      end
   end
   return ("," .. named .. ","):find("," .. name .. ",", 1, true) ~= nil
end

function slurm_job_submit(job, partitions, uid)
   if asks_for_mps(job) and may_be_in("debug", job, partitions) then
      slurm.log_user("--mps: not in partition debug; allowed: --partition=main")
      return slurm.ERROR
   end
   return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
   return slurm.SUCCESS
end

return slurm.SUCCESS
