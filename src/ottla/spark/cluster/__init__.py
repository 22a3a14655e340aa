"""What a Spark cluster needs besides Spark: the Python environment, the pipeline's files, and a look at the executors.

Owned by the driver's side: the command line and the runner. Nothing here imports PySpark when it is imported, and
nothing here knows how a pipeline is declared.
"""
