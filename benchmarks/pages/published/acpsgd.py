"""ACP-SGD's rows: its algorithm and usage, its baselines and sweeps, and its trainings."""

from benchmarks.pages.published.row import Row, attached, bench, trained

_FIGURES = "[figures](benchmarks/acpsgd.md)"
_STEPS = "[figures](benchmarks/steps.md)"

ROWS = (
    Row("its ten lines: join, wrap the optimizer, train", "gw.init()", "the script: `examples/mnist.py`"),
    Row(
        "`DistributedOptimizer(optimizer)`, rank 4, without names",
        "gw.DistributedOptimizer(optimizer, compressor=gw.ACPSGD(4))",
    ),
    Row("the same in DDP", attached("gw.ACPSGD(rank=4)")),
    Row("one factor a step, P and Q in turn; one sum", attached("gw.ACPSGD(4), communicator=gw.AllReduce()")),
    Row("error feedback by this rank's own reconstruction", attached("gw.ACPSGD(4), memory=gw.Residual()")),
    Row("without error feedback", attached("gw.ACPSGD(4), memory=gw.NoMemory()")),
    Row(
        "factors are reused; made orthonormal where they are used",
        attached("gw.ACPSGD(4)"),
        "one seed on all ranks; kept in checkpoints",
    ),
    Row(
        "every matrix is factored, vectors travel with the factors",
        attached("gw.ACPSGD(4, min_compression_rate=1)"),
        "those that shrink",
    ),
    Row("no dense steps first, or some", attached("gw.ACPSGD(4, start_step=10)")),
    Row(
        "groups of 25 MB of gradient, scaled to factors",
        attached("gw.ACPSGD(4), groups=gw.groups.of(megabytes=25)"),
        "by default some 8 of 8 MB or more",
    ),
    Row("no fusion", attached("gw.ACPSGD(4), groups=gw.groups.of(megabytes=0)")),
    Row("overlap with backward", attached("gw.ACPSGD(4)"), "how much: `handle.summary()`, `handle.trace()`"),
    Row("S-SGD", bench("dense")),
    Row("Power-SGD by torch's hook", bench("torch-powersgd:4")),
    Row("Power-SGD", attached("gw.PowerSGD(rank=4)")),
    Row("Sign-SGD", bench("signsgd efsignsgd")),
    Row("Top-k SGD", bench("topk:0.001")),
    Row("buffers of 0 to 1500 MB", bench("acpsgd:32@0mb acpsgd:32@25mb acpsgd:32@1500mb --model bert-large")),
    Row("batches of 8 to 32", bench("dense acpsgd:4 --model resnet152 --batch 8")),
    Row("ranks 32 to 256", bench("acpsgd:32 acpsgd:64 acpsgd:128 acpsgd:256 --model bert-large")),
    Row(
        "4 to 64 GPUs",
        bench("dense powersgd:4 acpsgd:4 --model resnet50 --play 64@10gbit --gpus-per-host 4"),
        "plays one rank of them",
    ),
    Row("1 Gbit/s, 10 Gbit/s, 100 Gbit/s", bench("dense acpsgd:4 --model bert-base --hosts 4 --link 1gbit")),
    Row("`batch.sh` and its sweeps", bench("--suite acpsgd")),
    Row("half precision", bench("dense acpsgd:4 --autocast bf16")),
    Row("the same, with a scaled loss", attached("gw.ACPSGD(4), scaler=torch.amp.GradScaler('cpu')")),
    Row("`launch_torch.sh`", "torchrun --nproc-per-node 4 -m gradwire bench dense acpsgd:4"),
    Row(
        "`profiling.py`: seconds of backward, layer by layer",
        "gradwire plan --task lm --hosts 4 --link 1gbit --candidates acpsgd:4",
        "in `profile.json`",
    ),
    Row("`comm_time.py`: many small sums, or one", bench("acpsgd:4@0mb acpsgd:4@1")),
    Row("gradients are accumulated over several batches", "ddp.no_sync()"),
    Row("MNIST, LeNet", trained("--preset acpsgd-mnist --data ~/mnist")),
    Row("ResNet-18 on CIFAR-10", trained("--preset acpsgd-resnet18-cifar10 --data ~/cifar10")),
    Row("VGG-16 on CIFAR-10", trained("--preset acpsgd-vgg16-cifar10 --data ~/cifar10")),
    Row("ResNet-50", trained("--preset acpsgd-resnet50-imagenet --data ~/images")),
    Row("ResNet-152", trained("--preset acpsgd-resnet152-imagenet --data ~/images")),
    Row("BERT-base, pre-training", trained("--preset acpsgd-bert-base --data ~/masked")),
    Row("BERT-large, pre-training", trained("--preset acpsgd-bert-large --data ~/masked")),
    Row("all trainings", trained("--suite acpsgd --data ~/sets")),
    Row("4.06x faster than S-SGD on average", note=f"by links: {_FIGURES}"),
    Row("1.43x faster than Power-SGD on average", note=f"faster, by less: {_FIGURES}"),
    Row(
        "Sign-SGD and Top-k SGD are often slower than S-SGD", note=f"not borne out at 100 Mbit/s and 1 Gbit/s: {_STEPS}"
    ),
    Row("accuracy as S-SGD's", note="what each rank costs in loss: [fidelity](fidelity.md)"),
    Row("DeAR: sums in two halves, the second under the next forward pass", note="not done: DDP waits for means"),
)
