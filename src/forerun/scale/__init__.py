"""Past one machine: batch jobs, Ray, several GPUs."""
