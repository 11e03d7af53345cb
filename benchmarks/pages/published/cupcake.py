"""Cupcake's rows: compressors, memories, communicators, groups and their search, and its trainings."""

from benchmarks.pages.published.row import Row, attached, bench, trained

_FIGURES = "[figures](benchmarks/cupcake.md)"
_BASELINE = "not done: options of its uncompressed baseline alone"

ROWS = (
    Row("compressor `none`", attached("gw.FP32()")),
    Row("compressor `fp16`", attached("gw.FP16()")),
    Row("compressor `dgc`, 1 % of the elements", attached("gw.DGC(0.01)")),
    Row("compressor `topk`", attached("gw.TopK(0.01)")),
    Row("compressor `randomk`", attached("gw.RandomK(0.01)"), "one seed on all ranks, so no indices travel"),
    Row(
        "compressor `qsgd`, 64 levels",
        attached("gw.QSGD(64)"),
        "of a block's largest magnitude; published: of the group's L2 norm",
    ),
    Row("compressor `efsignsgd`", attached("gw.EFSignSGD()"), "a scale per block"),
    Row("compressor `signsgd`", attached("gw.SignSGD()"), "the majority's sign, as in its paper"),
    Row("compressor `signum`, momentum 0.9", attached("gw.Signum(0.9)")),
    Row("compressor `terngrad`", attached("gw.TernGrad()"), "a scale per block"),
    Row("compressor `onebit`", attached("gw.OneBit()"), "two means per block"),
    Row("memory `residual`, with decay 0.9", attached("gw.EFSignSGD(), memory=gw.Residual(decay=0.9)")),
    Row(
        "memory `dgc`: momentum correction, masking, clipping",
        attached("gw.DGC(0.01), memory=gw.DGCMemory(momentum=0.9, masking=True, clip=1.0)"),
        "clips a parameter to the norm that is given; published: elements, at the root of the ranks' mean squared "
        "norm; and momentum 0.2 or 0.3",
    ),
    Row("memory `none`", attached("gw.TopK(0.01), memory=gw.NoMemory()")),
    Row("communicator `allgather`", attached("gw.OneBit(), communicator=gw.AllGather()")),
    Row("communicator `allreduce`", attached("gw.FP16(), communicator=gw.AllReduce()")),
    Row(
        "communicator `ps`: servers compress their sums again, with a memory of their own",
        attached("gw.EFSignSGD(), communicator=gw.ScatterReduce()"),
        "every rank serves a part of the vector; what its second compression drops goes into its own residual",
    ),
    Row(
        "pairings: fp16 without memory by allreduce; efsignsgd, qsgd, onebit with residual, signsgd and signum "
        "without, by allgather; dgc, topk, randomk with DGC's memory",
        bench(
            "fp16+nomemory+allreduce efsignsgd+residual+allgather qsgd+residual+allgather onebit+residual+allgather "
            "signsgd+nomemory+allgather signum+nomemory+allgather dgc+dgcmemory+allgather topk+dgcmemory+allgather "
            "randomk+dgcmemory+allgather"
        ),
    ),
    Row(
        "only what travels between hosts is compressed",
        attached("gw.EFSignSGD(), transport=gw.ProcessGroup.by_host(2)"),
    ),
    Row("a wrapper of the optimizer", "gw.DistributedOptimizer(optimizer, compressor=gw.EFSignSGD())"),
    Row(
        "the first steps uncompressed, then more and more",
        attached("gw.DGC(0.001), memory=gw.DGCMemory(), controller=gw.WarmUp(start=0.25, steps=1000, dense=1)"),
    ),
    Row("`--use-adasum`, `--gradient-predivide-factor`", note=_BASELINE),
    Row("`--fp16-allreduce`", bench("torch-fp16")),
    Row("`--fusion-num 0`: layer by layer, as in GRACE", attached("gw.EFSignSGD(), groups=gw.groups.of(megabytes=0)")),
    Row("`--fusion-num 1`: the whole model", attached("gw.EFSignSGD(), groups=gw.groups.of(count=1)")),
    Row("`--fusion-num Y`: even split", attached("gw.EFSignSGD(), groups=gw.groups.of(count=4)")),
    Row("buckets of one size", attached("gw.EFSignSGD(), groups=gw.groups.of(megabytes=25)")),
    Row(
        "any other groups",
        attached("gw.EFSignSGD(), groups=gw.groups.listed([['0.weight', '2.weight'], ['4.weight']])"),
    ),
    Row("only tensors that are large are compressed, as in HiPress", bench("dgc:0.01 --rule 'numel<65536=fp32'")),
    Row(
        "profile, cost model and search: the groups with the shortest step",
        "gradwire plan --task lm --hosts 4 --link 100mbit --candidates efsignsgd --objective step",
        "the report says what is proved of the optimum",
    ),
    Row("the same while training", bench("efsignsgd@planned")),
    Row(
        "the search gives the optimum, in seconds where 2^N plans take days",
        note="borne out, by another algorithm: [figures](benchmarks/search.md)",
    ),
    Row(
        "a searched plan is 1.12x faster than the best bucket, 1.18x than the best even split",
        bench("dgc:0.01@0mb dgc:0.01@1 dgc:0.01@4 dgc:0.01@25mb dgc:0.01@planned"),
        "this is one bucket size and one split; beside the best of each, by `python benchmarks/scheduler/ablation.py`, "
        f"medians are 1.0x: {_FIGURES}",
    ),
    Row(
        "scaling factors on 8 GPUs, and on 64 over 25 Gbit/s",
        note=f"simulated beside published by `python benchmarks/scheduler/published.py`: {_FIGURES}",
    ),
    Row(
        "the same on clusters of one's own",
        "gradwire simulate resnet50 --ranks 8,64 --link 25gbit --gpus-per-host 8",
        "as this runtime does it, encoding beside the backward pass, on faster PCIe: higher than theirs",
    ),
    Row("2.03x over no compression, 1.79x over HiPress", note=f"simulated: {_FIGURES}"),
    Row("step times of all compressors by all groups", bench("--suite cupcake")),
    Row("ResNet-50 on CIFAR-10, 200 epochs", trained("--preset cupcake-resnet50-cifar10 --data ~/cifar10")),
    Row("ResNet-101 on CIFAR-10", trained("--preset cupcake-resnet101-cifar10 --data ~/cifar10")),
    Row("ResNet-50 on ImageNet", trained("--preset cupcake-resnet50-imagenet --data ~/images")),
    Row("ResNet-101 on ImageNet, 120 epochs", trained("--preset cupcake-resnet101-imagenet --data ~/images")),
    Row(
        "BERT-base on SQuAD, 2 epochs",
        trained("--preset cupcake-bert-base-squad --data ~/squad"),
        "with `--pretrained FOLDER`",
    ),
    Row("all trainings", trained("--suite cupcake --data ~/sets"), "with `--pretrained FOLDER`, by task"),
    Row("accuracy as dense training's, 1.3 to 1.7 times sooner", note="not repeated"),
    Row("`--batches-per-allreduce`", "ddp.no_sync()"),
    Row("`--adam`", trained("efsignsgd --optimizer adamw")),
)
