"""The configurations that tables show, as `gw.attach` reads them, and the peers beside them."""

CONFIGURATIONS = {
    "TopK 1 %": "topk:0.01",
    "ACP-SGD r4": "acpsgd:4",
    "EFSignSGD": "efsignsgd",
    "4 bits by ScatterReduce": "quantized:4+scatterreduce",
    "PowerSGD r4": "powersgd:4",
    "TopK 1/16 in 10 bits": "topk:0.0625,value_bits=4",
    "DGC 1 %": "dgc:0.01+dgcmemory",
    "AllDimensionTopK 1 %": "alldimensiontopk:0.01",
    "PowerSGD 1/6 in 4 bits": "powersgd:0.16667,bits=4",
}
"""Those that the issue gives limits to."""

OTHERS = {
    "FP32": "fp32",
    "BF16": "bf16",
    "4 bits": "quantized:4",
    "8 bits": "quantized:8,block=128",
    "QSGD": "qsgd",
    "TernGrad": "terngrad",
    "OneBit": "onebit",
    "RandomK 1 %": "randomk:0.01",
    "SIDCo 1 %": "sidco:0.01",
    "RedSync 1 %": "redsync:0.01",
    "GaussianK 1 %": "gaussiank:0.01",
    "ReusedThreshold 1 %": "reusedthreshold:0.01",
    "TopK 1 % by ScatterReduce": "topk:0.01+scatterreduce",
    "TopK 1 % by OkTopk": "topk:0.01+oktopk",
    "PowerSGD r32 in 4 bits": "powersgd:32,bits=4",
    "SparseLoCo's chunks": "chunktopk",
}
"""More of them, for tables of one group."""

PEERS = ["no communication", "DDP", "fp16 hook", "bf16 hook", "torch PowerSGD r4", "torch PowerSGD r1"]
