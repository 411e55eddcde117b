"""How each command of the pages is carried out in the tests: a rule per command."""

from pathlib import Path

from tests.docs.commands import Elsewhere, Rule, Run, commands

SMOKE = "--scale smoke"
CELL = f"{SMOKE} --workloads avazu --systems freq_cache"
REAL = f"{SMOKE} --batch-size 64 --systems freq_cache"
PREPARED = "python -m workloads prepare criteo_kaggle --input train.txt --out data"
PREPARED_1TB = "python -m workloads prepare criteo_1tb --input $(ls -v day_*.gz) --out data"
PREPARED_SHOP = "python -m workloads prepare --schema shop.toml --input january.parquet february.csv --out data"
CURVES_SHOP = "python -m suite curves --workload shop --data-dir data --batch-size 4096 --torchrec shop.json"
ROWS = {"1000000": "8192"}
MAIN, BRANCH = (
    f"python run_bench.py --systems full_gpu,freq_cache --rounds 3 --out results/{run}" for run in ("main", "branch")
)
FEW = Run(
    add=f"{SMOKE} --workloads avazu --systems full_gpu,torchrec_uvm", swap={"--rounds 3": "--rounds 1"}, says="full_gpu"
)
APPROXIMATE = (
    "python run_bench.py --systems approximate --workloads criteo_kaggle --optimizer rowwise_adagrad --steps 2000 "
    "--rounds 5"
)
ROUNDS = 'make bench ARGS="--workloads avazu --rounds 3"'

RULES: dict[str, Rule] = {
    # those without a line of their own below: runs are planned, programs that made records are tested with them
    **{
        command: Run(
            add="--dry-run",
            swap={part: "" for part in ("--device cuda ", "--tf32 ") if part in command},
            after=(PREPARED,) if "--data-dir data" in command else (),
            says=" x ",
        )
        for command in commands()
        if command.startswith(("python run_bench.py ", "make bench "))
    },
    **{
        command: Elsewhere("tests/unit/results", Path(command.split()[1]).stem)
        for command in commands()
        if command.startswith("python results/")
    },
    # make
    "make bench": Run(add=CELL, says="freq_cache", leaves=("results/tables/comparison.md",)),
    **dict.fromkeys(("make test", "make test-all"), "the tests, of which this is one"),
    "make test-virtual-cuda": "installs torch's and fbgemm's builds for CUDA, 9 GB",
    **{
        command: "takes minutes; make test runs each benchmark once"
        for command in commands()
        if command.startswith("make microbench")
    },
    **dict.fromkeys(("make setup", "make setup TORCH=2.14"), "installs packages"),
    ROUNDS: Run(add=f"{SMOKE} --systems full_gpu", swap={"--rounds 3": "--rounds 2"}, says="2 rounds x 2 builds"),
    'make bench ARGS="--device-budget 160MiB,256MiB"': Run(
        add=CELL, swap={"160MiB,256MiB": "1MiB,2MiB"}, says="device budget 2 MiB"
    ),
    'make bench ARGS="--list"': Run(says="criteo_kaggle"),
    'make bench ARGS="--data-dir data"': Run(add=f"{REAL} --workloads criteo_kaggle", after=(PREPARED,), says="real"),
    # run_bench.py
    "python run_bench.py --list": Run(says="Approximate: "),
    APPROXIMATE: Run(
        add=SMOKE,
        swap={
            "--systems approximate": "--systems full_gpu,hashed",
            "--steps 2000": "--steps 8",
            "--rounds 5": "--rounds 1",
        },
        says="quality against bytes",
    ),
    "python run_bench.py --systems reference,one_table --workloads avazu --scale smoke": Elsewhere(
        "tests/docs/test_adding_a_system.py", "one_table"
    ),
    "python run_bench.py --systems all --data-dir data": Run(
        add=f"{REAL} --workloads criteo_kaggle", after=(PREPARED,), says="real"
    ),
    "python run_bench.py --systems all --data-dir data --workloads shop": Run(
        add=REAL, after=(PREPARED_SHOP,), says="shop"
    ),
    "python run_bench.py --workloads mlperf_dlrm_v2 --systems full_gpu,freq_cache --scale smoke": Elsewhere(
        "tests/unit/suite/run/cell/test_experiment.py", "mlperf_dlrm_v2"
    ),
    "python run_bench.py --systems full_gpu,no_embeddings --scale small --optimizer rowwise_adagrad --steps 4000": Run(
        add="--workloads avazu --systems no_embeddings",
        swap={"--scale small": "--scale smoke", "--steps 4000": "--steps 40"},
        says="no_embeddings",
    ),
    # several devices
    "python run_bench.py --systems all --ranks 2 --scale smoke": Run(
        add="--workloads avazu --systems freq_cache", says="ranks on one machine"
    ),
    "torchrun --standalone --nproc-per-node 2 docs/examples/train_dlrm_ranks_cached.py": Elsewhere(
        "tests/docs/test_examples.py", "train_dlrm_ranks_"
    ),
    # datasets
    PREPARED: Run(leaves=("data/criteo_kaggle/manifest.json",)),
    "python -m workloads prepare avazu --input train.gz --out data": Run(leaves=("data/avazu/manifest.json",)),
    PREPARED_1TB: Run(leaves=("data/criteo_1tb/manifest.json",), says="day_0.gz, day_1.gz, day_10.gz"),
    "python -m workloads prepare criteo_kaggle --input train.txt --out hashed --ids hashed": Run(
        leaves=("hashed/criteo_kaggle/manifest.json",)
    ),
    PREPARED_SHOP: Run(leaves=("data/shop/manifest.json",)),
    "python -m workloads prepare criteo_1tb --input $(ls -v /shared/day_*.gz) --out /shared/data --scheduler ADDRESS": (
        Elsewhere("tests/unit/workloads/prepare/test_prepare_cluster.py", "scheduler=")
    ),
    '.venv/bin/pip install --editable ".[cluster]"': "installs from the network",
    "dask scheduler": "runs until it is stopped, on the first machine of a cluster",
    "dask worker ADDRESS --nworkers 8 --nthreads 1": "runs until it is stopped, on machines of a cluster",
    "python -m workloads verify data/criteo_kaggle": Run(after=(PREPARED,), says="files are as prepared"),
    "python -m workloads describe data/criteo_kaggle": Run(after=(PREPARED,), says="distinct"),
    "python -m workloads describe data/criteo_1tb --rows 10000000": Run(after=(PREPARED_1TB,), says="distinct"),
    "python -m workloads describe --synthetic criteo_kaggle@drift --rows 1000000": Run(swap=ROWS, says="8,192"),
    "python -m workloads describe --synthetic avazu@drift --rows 1000000 --seed 1": Run(swap=ROWS, says="8,192"),
    # simulation
    "python -m suite simulate --workload criteo_kaggle --cache-ratio 0.001:0.5": Run(
        add="--scale smoke --batches 6 --points 2 --policies freq_cache,lru", says="belady"
    ),
    "python -m suite simulate --workload criteo_kaggle --scale full --policies all --cache-ratio 0.001:0.5 --points 7 "
    "--frequency-prefix 1 --out results/simulate/criteo_kaggle": Run(
        add="--batches 6",
        swap={"--scale full": "--scale smoke", "--points 7": "--points 2", "results/simulate": "simulated"},
        leaves=("simulated/criteo_kaggle/simulation.json", "simulated/criteo_kaggle/simulation.csv"),
    ),
    'python -m suite simulate --workload criteo_kaggle --scale full --policies "freq_cache[policy=static],'
    'freq_cache[policy=lfu],colossalai[policy=dataset],fbgemm_uvm_caching[policy=lru]" '
    "--cache-ratio 0.003,0.01,0.03,0.1 --warmup 800 --epoch --out results/simulate/epoch": Run(
        swap={"--scale full": "--scale smoke", "--warmup 800 --epoch": "--batches 6", "results/simulate": "simulated"},
        leaves=("simulated/epoch/simulation.json",),
    ),
    "python -m suite simulate --workload criteo_kaggle --scale small "
    '--policies "freq_cache,freq_cache[ram=3]" --cache-ratio 0.08': Run(
        add="--batches 6", swap={"--scale small": "--scale smoke"}, says="freq_cache[ram=3]"
    ),
    "python -m suite simulate --trace ids.npy --batch-size 4096 --cache-ratio 0.05 --epoch": Run(
        add="--policies lru,belady", swap={"4096": "256"}, says="belady"
    ),
    "python -m suite simulate": Run(
        add="--workload avazu --scale smoke --batches 6 --cache-ratio 0.2 --policies lru", says="belady"
    ),
    "python -m suite curves --workload criteo_kaggle --split 0.01": Run(
        add="--scale smoke --batch-size 16", says="cache_rows="
    ),
    "python -m suite curves --workload criteo_kaggle --scale full --split 0.01 --out results/simulate/curves": Run(
        add="--batch-size 16",
        swap={"--scale full": "--scale smoke", "results/simulate": "simulated"},
        leaves=("simulated/curves/curves.json", "simulated/curves/split.csv"),
    ),
    "python -m suite curves --scale small --per-table": Run(swap={"small": "smoke"}, says="all tables"),
    "python -m suite curves --split 0.01 --out curves/": Run(
        add="--scale smoke --batch-size 16", leaves=("curves/curves.json",)
    ),
    "python -m suite curves --workload avazu --torchrec plan.json": Run(add=SMOKE, leaves=("plan.json",)),
    "python -m suite curves --workload avazu --torchrec plan.json --split 0.05 --prefetch": Run(
        add=f"{SMOKE} --batch-size 16", leaves=("plan.json",)
    ),
    CURVES_SHOP: Run(swap={"4096": "64"}, after=(PREPARED_SHOP,), leaves=("shop.json",)),
    "python docs/examples/shard_with_torchrec.py --plan shop.json --data data/shop --hbm 1GiB": Run(
        swap={"1GiB": "24KiB"}, after=(CURVES_SHOP,), says="user: fused_uvm_caching, load factor 0."
    ),
    "python -m suite advise --workload criteo_1tb --hardware a100 --device-memory 8GiB": Run(
        add="--scale smoke --batches 6", says="bound"
    ),
    "python -m suite advise": Run(add="--workload avazu --scale smoke"),
    "python -m suite advise --workload criteo_kaggle": Run(add="--scale smoke", says="full_gpu"),
    "python -m suite advise --workload avazu --device-memory 64MiB": Run(add="--scale smoke", says="64 MiB"),
    "python -m suite advise --hardware my_gpu.json --json": Run(add="--scale smoke --batches 6", says="least_s"),
    # results
    "python -m suite doctor": Run(add="--seconds 0.1", codes=(0, 1)),
    "python -m suite report": Elsewhere("tests/unit/suite/report/test_published_results.py", "python -m suite report"),
    "python -m suite report --out results": Run(after=(ROUNDS,), leaves=("results/index.html",)),
    "python -m suite report --records results/main --records results/branch --out results/both": Run(
        after=(MAIN, BRANCH), leaves=("results/both/index.html",)
    ),
    MAIN: FEW,
    "git switch my-branch": "the branch is the reader's",
    BRANCH: FEW,
    "python -m suite compare results/main results/branch": Run(after=(MAIN, BRANCH), says="beyond noise"),
    # One round on a busy machine may show a loss by chance: what counts is that the gate has judged.
    "python -m suite compare results/main results/branch --fail-if-slower 10%": Run(
        after=(MAIN, BRANCH), says="--fail-if-slower 10%:", codes=(0, 1)
    ),
    "python -m suite validate": Run(after=(ROUNDS,), says="valid"),
    # on a CUDA device
    "python -m pytest -q -m cuda": "needs a CUDA device",
    'python -m pytest -q -m "not slow"': "the tests, of which this is one",
    "python -m suite report --out results/cuda": "needs the records of a CUDA device",
    # figures and benchmarks
    "python docs/figures/freq_cache.py": Elsewhere("tests/docs/test_freq_cache_doc.py", "freq_cache.py"),
    "python docs/figures/cache_table.py": Run(says="misses against Belady's"),
    "python docs/figures/simulation_tables.py --write": Run(),
    "pytest -m cuda tests/contract/test_simulated_fbgemm_cuda.py": "needs a CUDA device",
}
