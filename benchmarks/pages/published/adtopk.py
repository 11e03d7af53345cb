"""ADTopk's rows: its selections and collectives, its baselines, and its trainings."""

from benchmarks.pages.published.row import Row, attached, bench, trained

_FIGURES = "[figures](benchmarks/adtopk.md)"
_COLLECTIVES = "[figures](benchmarks/collectives.md)"
_CONFERENCE = "the conference's; how it was trained could not be read"


def _by(communicator: str) -> str:
    return attached(f"gw.TopK(0.01), communicator={communicator}")


ROWS = (
    Row(
        "all-dimension top-k: each row's largest",
        attached("gw.AllDimensionTopK(0.01)"),
        "by columns where these are longer, which `axis=1` forbids; convolutions as (outputs, all else): along input "
        "channels alone a first layer sends a third",
    ),
    Row("by columns instead", attached("gw.AllDimensionTopK(0.01, axis=0)")),
    Row(
        "ADTopk-I: all-dimension and global top-k in turn",
        attached("gw.Interleaved(gw.AllDimensionTopK(0.01), gw.TopK(0.01))"),
    ),
    Row(
        "ADTopk: a threshold that is reused, and adapts its period",
        attached("gw.ReusedThreshold(0.01, reuse=5, warmup=15)"),
        "without its last quarter, all-dimension selection where the threshold is stable",
    ),
    Row(
        "both of them in turn",
        attached("gw.Interleaved(gw.AllDimensionTopK(0.01), gw.ReusedThreshold(0.01))"),
        "the period counts the threshold's own turns; published: all steps",
    ),
    Row(
        "partial sparsification: small tensors dense within the budget",
        attached("gw.TopK(0.01), groups=gw.groups.partial()"),
        "those of all groups travel last, together; published: each in its group",
    ),
    Row(
        "partial sparsification: tensors of at most p elements dense",
        attached("gw.TopK(0.01), groups=gw.groups.partial(threshold=4096)"),
    ),
    Row(
        "what would wait for the wire anyway stays dense",
        "gradwire plan --task lm --hosts 4 --link 1gbit --candidates topk:0.01",
        "whole groups, by their time; float32 is always a candidate; published: tensors within a group",
    ),
    Row("hybrid collectives: dense tensors all-reduced, sparse ones gathered", bench("topk:0.01@hybrid")),
    Row(
        "some tensors are not sparsified: vectors, or by name",
        bench("topk:0.01 --rule '*.features.0.*=fp32' --rule 'dim<2=fp32'"),
    ),
    Row("memory `residual`, applied to all", attached("gw.AllDimensionTopK(0.01), memory=gw.Residual()")),
    Row(
        "memory `dgc`",
        attached("gw.AllDimensionTopK(0.01), memory=gw.DGCMemory()"),
        "its clipping is of elements, `clip=` of a parameter's norm",
    ),
    Row("memory `residualgtopk`: what a merge drops is kept", _by("gw.GlobalTopK()")),
    Row("compressor `dgc`", attached("gw.DGC(0.01)")),
    Row("compressor `gaussiank`", attached("gw.GaussianK(0.01)")),
    Row(
        "compressors `redsync`, `redsynctrim`", attached("gw.RedSync(0.01)"), "trimmed always: the k largest that pass"
    ),
    Row("compressor `sidcoexp`", attached("gw.SIDCo(0.01, 'exponential')")),
    Row("compressor `sidcogp`", attached("gw.SIDCo(0.01, 'pareto')")),
    Row("compressor `sidcogam`", attached("gw.SIDCo(0.01, 'gamma')")),
    Row("compressor `threshold`: what is above the k-th magnitude", attached("gw.TopK(0.01)"), "the k-th element too"),
    Row("compressor `randomk`, with a shared seed", attached("gw.RandomK(0.01)")),
    Row("compressor `powersgd`", attached("gw.PowerSGD(4)")),
    Row("Ok-Topk", _by("gw.OkTopk()"), _COLLECTIVES),
    Row("gTop-k", _by("gw.GlobalTopK()"), _COLLECTIVES),
    Row("split and all-gather, as in SparCML", _by("gw.SplitGather()"), _COLLECTIVES),
    Row("exclusive parts, as in MiCRO, ExDyna and DEFT", _by("gw.Exclusive()"), "parts of one size, in turn"),
    Row(
        "CLT-k, as in ScaleCom",
        _by("gw.LeaderIndices()"),
        f"without its low-pass filter of the memory; {_COLLECTIVES}",
    ),
    Row("SparDL, Zen, OmniReduce, A2SGD, JointSpar", note="not done"),
    Row("dense by `fp16`", bench("torch-fp16")),
    Row("scaled losses, half precision", trained("topk:0.01 --autocast fp16")),
    Row("a wrapper of the optimizer", "gw.DistributedOptimizer(optimizer, compressor=gw.Interleaved())"),
    Row(
        "ratio per row by water-filling, its decay, stale sums: `heterogeneous/`",
        note="not done: nothing calls it there; `gw.LGreCo` chooses by layer",
    ),
    Row("DGC's warm-up", attached("gw.DGC(0.001), memory=gw.DGCMemory(0.9), controller=gw.WarmUp(0.25, 1000)")),
    Row("merging as in MG-WFBP", bench("topk:0.01@25mb topk:0.01@planned"), "exact search in place of a greedy one"),
    Row("step times of ADTopk-I, ADTopk and five others, gathered and hybrid, and of Ok-Topk", bench("--suite adtopk")),
    Row("BERT-large on SQuAD", trained("--preset adtopk-bert-large-squad --data ~/squad")),
    Row("GPT-2 large on WikiText-103", trained("--preset adtopk-gpt2-large-wikitext --data ~/wikitext")),
    Row("ViT-large on ImageNet", trained("--preset adtopk-vit-large-imagenet --data ~/images")),
    Row("ResNet-152 on ImageNet", trained("--preset adtopk-resnet152-imagenet --data ~/images")),
    Row(
        "fine-tuning begins with trained weights",
        note="`--pretrained FOLDER`, one of `save_pretrained`, with any of these; of a suite FOLDER/TASK",
    ),
    Row("VGG-16 on CIFAR-100", trained("--preset adtopk-vgg16-cifar100 --data ~/cifar100"), _CONFERENCE),
    Row("ResNet-50 on CIFAR-100", trained("--preset adtopk-resnet50-cifar100 --data ~/cifar100"), _CONFERENCE),
    Row("LSTM on WikiText-2", trained("--preset adtopk-lstm-wikitext --data ~/wikitext"), _CONFERENCE),
    Row("ResNet-101, BERT-base, Transformer: the conference's others", note="not done"),
    Row("all trainings", trained("--suite adtopk --data ~/sets")),
    Row("selection by rows is faster than top-k", note=f"not borne out on CPUs: {_FIGURES}"),
    Row(
        "loss as top-k's or better",
        note="not at equal bytes: rows lose up to 1.5 % on text, 15 to 38 % on images; in turn with top-k up to 1.2 %, "
        "and 4 to 7 %. Borne out beside its code's top-k of each tensor where the ratio asked for is below one element "
        f"a row: {_FIGURES}",
    ),
    Row("268.0 % more throughput", note="not repeated: of which run could not be read"),
)
