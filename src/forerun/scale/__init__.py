"""Past one machine: replicas on Ray, batch jobs, tensor parallel.

Nothing is imported here; `forerun.scale.ray` needs the extra `ray` when it is used.
"""
