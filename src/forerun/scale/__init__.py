"""Several machines: replicas on Ray, batch jobs, sweeps and training on a cluster.

Nothing is imported here; `forerun.scale.ray` needs the extra `ray` when it is used.
"""
