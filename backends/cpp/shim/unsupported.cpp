// The functions of the server's API that are not there: servers inside the process, and calls of other models.
// They take any arguments, as C functions may, and say so; a backend that refers to them loads.
#include "abi.h"

#define NOT_THERE(NAME)                                                                               \
  API Error* TRITONSERVER_##NAME() {                                                                \
    return error(UNSUPPORTED, "TRITONSERVER_" #NAME " is not supported for backends of this server"); \
  }
#define EACH(X) \
  X(InferenceRequestAddInput) X(InferenceRequestAddRawInput) X(InferenceRequestAddRequestedOutput) \
  X(InferenceRequestAppendInputData) X(InferenceRequestAppendInputDataWithBufferAttributes) \
  X(InferenceRequestAppendInputDataWithHostPolicy) X(InferenceRequestCancel) X(InferenceRequestCorrelationId) \
  X(InferenceRequestCorrelationIdString) X(InferenceRequestDelete) X(InferenceRequestFlags) \
  X(InferenceRequestId) X(InferenceRequestIsCancelled) X(InferenceRequestNew) X(InferenceRequestPriority) \
  X(InferenceRequestPriorityUInt64) X(InferenceRequestRemoveAllInputData) X(InferenceRequestRemoveAllInputs) \
  X(InferenceRequestRemoveAllRequestedOutputs) X(InferenceRequestRemoveInput) \
  X(InferenceRequestRemoveRequestedOutput) X(InferenceRequestSetBoolParameter) \
  X(InferenceRequestSetCorrelationId) X(InferenceRequestSetCorrelationIdString) \
  X(InferenceRequestSetDoubleParameter) X(InferenceRequestSetFlags) X(InferenceRequestSetId) \
  X(InferenceRequestSetIntParameter) X(InferenceRequestSetPriority) X(InferenceRequestSetPriorityUInt64) \
  X(InferenceRequestSetReleaseCallback) X(InferenceRequestSetResponseCallback) \
  X(InferenceRequestSetStringParameter) X(InferenceRequestSetTimeoutMicroseconds) \
  X(InferenceRequestTimeoutMicroseconds) X(InferenceResponseDelete) X(InferenceResponseError) \
  X(InferenceResponseId) X(InferenceResponseModel) X(InferenceResponseOutput) \
  X(InferenceResponseOutputClassificationLabel) X(InferenceResponseOutputCount) X(InferenceResponseParameter) \
  X(InferenceResponseParameterCount) X(InferenceTraceContext) X(InferenceTraceDelete) X(InferenceTraceId) \
  X(InferenceTraceModelName) X(InferenceTraceModelVersion) X(InferenceTraceNew) X(InferenceTraceParentId) \
  X(InferenceTraceRequestId) X(InferenceTraceSetContext) X(InferenceTraceSpawnChildTrace) \
  X(InferenceTraceTensorNew) X(MetricsDelete) X(MetricsFormatted) X(ResponseAllocatorDelete) \
  X(ResponseAllocatorNew) X(ResponseAllocatorSetBufferAttributesFunction) X(ResponseAllocatorSetQueryFunction) \
  X(ServerDelete) X(ServerInferAsync) X(ServerIsLive) X(ServerIsReady) X(ServerLoadModel) \
  X(ServerLoadModelWithParameters) X(ServerMetadata) X(ServerMetrics) X(ServerModelBatchProperties) \
  X(ServerModelConfig) X(ServerModelIndex) X(ServerModelIsReady) X(ServerModelMetadata) X(ServerModelStatistics) \
  X(ServerModelTransactionProperties) X(ServerNew) X(ServerOptionsAddRateLimiterResource) X(ServerOptionsDelete) \
  X(ServerOptionsNew) X(ServerOptionsSetBackendConfig) X(ServerOptionsSetBackendDirectory) \
  X(ServerOptionsSetBufferManagerThreadCount) X(ServerOptionsSetCacheConfig) X(ServerOptionsSetCacheDirectory) \
  X(ServerOptionsSetCpuMetrics) X(ServerOptionsSetCudaMemoryPoolByteSize) \
  X(ServerOptionsSetCudaVirtualAddressSize) X(ServerOptionsSetEnablePeerAccess) X(ServerOptionsSetExitOnError) \
  X(ServerOptionsSetExitTimeout) X(ServerOptionsSetGpuMetrics) X(ServerOptionsSetHostPolicy) \
  X(ServerOptionsSetLogError) X(ServerOptionsSetLogFile) X(ServerOptionsSetLogFormat) X(ServerOptionsSetLogInfo) \
  X(ServerOptionsSetLogVerbose) X(ServerOptionsSetLogWarn) X(ServerOptionsSetMetrics) \
  X(ServerOptionsSetMetricsConfig) X(ServerOptionsSetMetricsInterval) \
  X(ServerOptionsSetMinSupportedComputeCapability) X(ServerOptionsSetModelConfigName) \
  X(ServerOptionsSetModelControlMode) X(ServerOptionsSetModelLoadDeviceLimit) \
  X(ServerOptionsSetModelLoadRetryCount) X(ServerOptionsSetModelLoadThreadCount) \
  X(ServerOptionsSetModelNamespacing) X(ServerOptionsSetModelRepositoryPath) \
  X(ServerOptionsSetPinnedMemoryPoolByteSize) X(ServerOptionsSetRateLimiterMode) \
  X(ServerOptionsSetRepoAgentDirectory) X(ServerOptionsSetResponseCacheByteSize) X(ServerOptionsSetServerId) \
  X(ServerOptionsSetStartupModel) X(ServerOptionsSetStrictModelConfig) X(ServerOptionsSetStrictReadiness) \
  X(ServerPollModelRepository) X(ServerRegisterModelRepository) X(ServerSetExitTimeout) X(ServerStop) \
  X(ServerUnloadModel) X(ServerUnloadModelAndDependents) X(ServerUnregisterModelRepository)
EACH(NOT_THERE)

API const char* TRITONSERVER_InferenceTraceActivityString(int) { return "<not supported>"; }
API const char* TRITONSERVER_InferenceTraceLevelString(int) { return "<not supported>"; }
