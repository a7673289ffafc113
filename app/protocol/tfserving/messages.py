"""Messages of TensorFlow Serving's gRPC API, as far as they are answered.

Names and numbers of fields are those of TensorFlow Serving's apis/*.proto and of TensorFlow's
framework/tensor.proto, all in one package, whose name is in the type of the metadata.
"""

from typing import Final

from app.protocol.message_pool import MessagePool
from app.protocol.tfserving.signature import DTYPES

NUMBERS: Final = {
    "DT_FLOAT": 1, "DT_DOUBLE": 2, "DT_INT32": 3, "DT_UINT8": 4, "DT_INT16": 5, "DT_INT8": 6, "DT_STRING": 7,
    "DT_INT64": 9, "DT_BOOL": 10, "DT_BFLOAT16": 14, "DT_UINT16": 17, "DT_HALF": 19, "DT_UINT32": 22,
    "DT_UINT64": 23,
}  # fmt: skip
"""TensorFlow's numbers of data types."""
DATATYPES: Final = {NUMBERS[name]: datatype for datatype, name in DTYPES.items()}
"""The v2 name of a data type, by TensorFlow's number."""
STATES: Final = {
    "UNKNOWN": 0, "START": 10, "LOADING": 20, "AVAILABLE": 30, "UNLOADING": 40, "END": 50,
}  # fmt: skip

_POOL: Final = MessagePool(
    "tensorflow.serving",
    {
        "Dim": "size:int64=1 name:string=2",
        "TensorShapeProto": "dim:*tensorflow.serving.Dim=2 unknown_rank:bool=3",
        "TensorProto": (
            "dtype:int32=1 tensor_shape:tensorflow.serving.TensorShapeProto=2 version_number:int32=3 "
            "tensor_content:bytes=4 half_val:*int32=13 float_val:*float=5 double_val:*double=6 "
            "int_val:*int32=7 string_val:*bytes=8 int64_val:*int64=10 bool_val:*bool=11 "
            "uint32_val:*uint32=16 uint64_val:*uint64=17"
        ),
        "TensorInfo": "name:string=1 dtype:int32=2 tensor_shape:tensorflow.serving.TensorShapeProto=3",
        "SignatureDef": (
            "inputs:map<tensorflow.serving.TensorInfo>=1 outputs:map<tensorflow.serving.TensorInfo>=2 "
            "method_name:string=3"
        ),
        "SignatureDefMap": "signature_def:map<tensorflow.serving.SignatureDef>=1",
        "MetaGraphDef": "signature_def:map<tensorflow.serving.SignatureDef>=5",
        "SavedModel": "meta_graphs:*tensorflow.serving.MetaGraphDef=2",
        "ModelSpec": (
            "name:string=1 version:google.protobuf.Int64Value=2 signature_name:string=3 "
            "version_label:string=4"
        ),
        "PredictRequest": (
            "model_spec:tensorflow.serving.ModelSpec=1 inputs:map<tensorflow.serving.TensorProto>=2 "
            "output_filter:*string=3"
        ),
        "PredictResponse": (
            "outputs:map<tensorflow.serving.TensorProto>=1 model_spec:tensorflow.serving.ModelSpec=2"
        ),
        "BytesList": "value:*bytes=1",
        "FloatList": "value:*float=1",
        "Int64List": "value:*int64=1",
        "Feature": (
            "bytes_list:tensorflow.serving.BytesList=1 float_list:tensorflow.serving.FloatList=2 "
            "int64_list:tensorflow.serving.Int64List=3"
        ),
        "Features": "feature:map<tensorflow.serving.Feature>=1",
        "Example": "features:tensorflow.serving.Features=1",
        "ExampleList": "examples:*bytes=1",
        "ExampleListWithContext": "examples:*bytes=1 context:bytes=2",
        "Input": (
            "example_list:tensorflow.serving.ExampleList=1 "
            "example_list_with_context:tensorflow.serving.ExampleListWithContext=2"
        ),
        "ClassificationRequest": (
            "model_spec:tensorflow.serving.ModelSpec=1 input:tensorflow.serving.Input=2"
        ),
        "Class": "label:string=1 score:float=2",
        "Classifications": "classes:*tensorflow.serving.Class=1",
        "ClassificationResult": "classifications:*tensorflow.serving.Classifications=1",
        "ClassificationResponse": (
            "result:tensorflow.serving.ClassificationResult=1 model_spec:tensorflow.serving.ModelSpec=2"
        ),
        "RegressionRequest": "model_spec:tensorflow.serving.ModelSpec=1 input:tensorflow.serving.Input=2",
        "Regression": "value:float=1",
        "RegressionResult": "regressions:*tensorflow.serving.Regression=1",
        "RegressionResponse": (
            "result:tensorflow.serving.RegressionResult=1 model_spec:tensorflow.serving.ModelSpec=2"
        ),
        "InferenceTask": "model_spec:tensorflow.serving.ModelSpec=1 method_name:string=2",
        "InferenceResult": (
            "model_spec:tensorflow.serving.ModelSpec=1 "
            "classification_result:tensorflow.serving.ClassificationResult=2 "
            "regression_result:tensorflow.serving.RegressionResult=3"
        ),
        "MultiInferenceRequest": (
            "tasks:*tensorflow.serving.InferenceTask=1 input:tensorflow.serving.Input=2"
        ),
        "MultiInferenceResponse": "results:*tensorflow.serving.InferenceResult=1",
        "GetModelMetadataRequest": "model_spec:tensorflow.serving.ModelSpec=1 metadata_field:*string=2",
        "GetModelMetadataResponse": (
            "model_spec:tensorflow.serving.ModelSpec=1 metadata:map<google.protobuf.Any>=2"
        ),
        "GetModelStatusRequest": "model_spec:tensorflow.serving.ModelSpec=1",
        "StatusProto": "error_code:int32=1 error_message:string=2",
        "ModelVersionStatus": ("version:int64=1 state:int32=2 status:tensorflow.serving.StatusProto=3"),
        "GetModelStatusResponse": "model_version_status:*tensorflow.serving.ModelVersionStatus=1",
    },
)
"""Enums are their numbers; the examples of a list are bytes, which go to the model as they are."""
message_class: Final = _POOL.message_class
