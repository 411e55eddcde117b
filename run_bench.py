"""Compare every way of keeping embedding tables that do not fit in GPU memory: `python run_bench.py --help`."""

from suite.run.console.command import main

if __name__ == "__main__":
    main()
