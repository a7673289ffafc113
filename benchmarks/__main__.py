from benchmarks.run import start

start()
