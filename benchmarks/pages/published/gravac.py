"""GraVAC's rows: its controller and compressors, those it is compared with, and its trainings."""

from benchmarks.pages.published.row import Row, attached, bench, trained

_FIGURES = "[figures](benchmarks/gravac.md)"
_LEFT_OPEN = "[where the paper leaves it open](algorithms.md#controllers)"


def _controlled(compressor: str, controller: str) -> str:
    return attached(f"{compressor}, controller={controller}")


ROWS = (
    Row(
        "factors of 10x to 1000x, windows of 500 steps, tolerance of 1 %",
        _controlled("gw.DGC(0.1)", "gw.GraVAC(10, 1000, window=500, tolerance=0.01)"),
        f"changed {_LEFT_OPEN}",
    ),
    Row(
        "gain: the energy that is sent, over the energy of gradient and residual",
        _controlled("gw.TopK(0.1)", "gw.GraVAC(gain='energy')"),
        "the default is a gain by delays: the printed formula sends dense at any factor",
    ),
    Row("a smallest gain, 0.7 or 0.9", _controlled("gw.TopK(0.1)", "gw.GraVAC(gain='energy', min_gain=0.7)")),
    Row("moving averages with factor ranks / 100", _controlled("gw.TopK(0.1)", "gw.GraVAC(smoothing=0.32)")),
    Row(
        "exponential scaling",
        _controlled("gw.DGC(0.1)", "gw.GraVAC(scaling='exponential')"),
        "its factors, not its order: a middle one comes first",
    ),
    Row(
        "geometric scaling, with RedSync from 10x to 2000x",
        _controlled("gw.RedSync(0.1)", "gw.GraVAC(10, 2000, window=2000, scaling='geometric')"),
    ),
    Row(
        "Random-k from 1.5x on",
        _controlled("gw.RandomK(0.6)", "gw.GraVAC(1.5, 1000, window=2000, scaling='geometric')"),
    ),
    Row("two levels, the second selected among the first's", attached("gw.MultiLevel(gw.TopK(0.1), further=10)")),
    Row(
        "levels fall back step by step: factor, smaller factor, dense",
        attached("gw.MultiLevel(gw.TopK(0.1), further=10, min_share=0.7)"),
        "each group by its own norms of the step before, so that no rank waits; published: the whole model at once",
    ),
    Row("two levels are 1.1 to 1.8 times as fast as compressing twice", note=f"borne out in part: {_FIGURES}"),
    Row("error feedback", attached("gw.TopK(0.1), memory=gw.Residual()")),
    Row("compressor Top-k", attached("gw.TopK(0.001)")),
    Row("compressor DGC", attached("gw.DGC(0.001)")),
    Row("compressor RedSync", attached("gw.RedSync(0.001)")),
    Row("compressor Random-k", attached("gw.RandomK(0.001)"), "without replacement"),
    Row("compressor SIDCo", attached("gw.SIDCo(0.001)")),
    Row("all ranks choose the same factor", note="always so; the paper's ranks decide alone, and may differ"),
    Row(
        "Accordion with sparsifiers",
        _controlled("gw.TopK(0.1)", "gw.Accordion(0.1, 0.001, interval=100, scheduler=scheduler)"),
    ),
    Row("Accordion with PowerSGD of rank 4 and 1", bench("powersgd:4+accordion:4,1"), _FIGURES),
    Row(
        "ScaDLES: one level or dense",
        _controlled("gw.TopK(0.1)", "gw.ScaDLES(factor=10, loss=0.3)"),
        "each group by the step before; published: the whole model at once, by moving averages",
    ),
    Row("AR-Topk: one rank's indices, in turn", attached("gw.TopK(0.01), communicator=gw.LeaderIndices()")),
    Row("AR-Topk: the indices of the rank with the most energy", note="not done: ranks take turns"),
    Row(
        "the cheapest collective for a link and a ratio",
        "gradwire plan --task lm --hosts 4 --link 100mbit --candidates "
        "topk:0.01+residual+allgather,topk:0.01+residual+leaderindices --objective step",
        "where none is named: of all-gather and scatter-reduce",
    ),
    Row(
        "L-GreCo: a ratio or rank for each layer",
        _controlled("gw.PowerSGD(4)", "gw.LGreCo(budget='error')"),
        "ranks of 1/4 to 4 times the given one, errors of one step of all ranks; published: 1/2 to 2 times, of the "
        "mean of ten steps of rank 0",
    ),
    Row("L-GreCo within Accordion's regimes", note="not done: one controller at a time"),
    Row("CAT: a factor for each step", _controlled("gw.TopK(0.1)", "gw.CAT(10, 1000)")),
    Row("DC2, Kimad, EDGC, PacTrain, AdaComp", note="not done: only abstracts could be read"),
    Row("static factors: 10x, 100x, 1000x", bench("topk:0.1@0mb topk:0.01@0mb topk:0.001@0mb"), "layer by layer"),
    Row("step times of four sparsifiers by three factors", bench("--suite gravac")),
    Row(
        "ResNet-101 on CIFAR-10, 42,000 steps",
        trained("--preset gravac-resnet101 --data ~/cifar10"),
        "its learning rate falls: see the last row",
    ),
    Row("VGG-16 on CIFAR-100, 9,000 steps", trained("--preset gravac-vgg16 --data ~/cifar100")),
    Row("LSTM on PTB, 20,000 steps", trained("--preset gravac-lstm --data ~/ptb"), "held out: from a zero state"),
    Row("all trainings", trained("--suite gravac --data ~/sets"), "in small without `--data`"),
    Row(
        "a resumed training goes on",
        trained("--preset gravac-lstm --data ~/ptb --checkpoint-every 1000"),
        "then `gradwire train --resume FOLDER`",
    ),
    Row("4.32x, 1.95x, 6.67x sooner than static Top-k 10x", note=f"borne out in part: {_FIGURES}"),
    Row("1.94x, 5.63x, 2.06x sooner than Accordion", note=f"not borne out with PowerSGD: {_FIGURES}"),
    Row(
        "sooner than any static factor",
        note="borne out on an LSTM, and where the learning rate falls after a number of steps, with `min_gain=0.95` "
        "(without it that LSTM was never at dense's loss); not on images at one rate, nor on VGG-16 in the paper "
        f"itself: {_FIGURES}; `gradwire train --suite gravac`",
    ),
)
