// SPDX-License-Identifier: Apache-2.0
// Streams and events: work goes into a queue and runs later, in order, on the stream's own thread.
#include <pthread.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "tests/support/stand_in_cuda/stand_in.h"

std::shared_ptr<CUstream_st> CUstream_st::Start(CUctx_st& context) {
  std::shared_ptr<CUstream_st> stream(new CUstream_st(context));
  std::thread([stream] {
    stream->Run();
  }).detach();  // it may sit idle when the process ends, as the driver's do
  return stream;
}

uint64_t CUstream_st::Push(Work work) {
  const pinfeed::MutexLock lock(mutex_);
  queue_.push_back(std::move(work));
  changed_.NotifyAll();
  return ++pushed_;
}

uint64_t CUstream_st::Pushed() {
  const pinfeed::MutexLock lock(mutex_);
  return pushed_;
}

bool CUstream_st::IsFinished(uint64_t number) {
  const pinfeed::MutexLock lock(mutex_);
  return finished_ >= number;
}

void CUstream_st::Wait(uint64_t number) {
  const pinfeed::MutexLock lock(mutex_);
  while (finished_ < number) changed_.Wait(mutex_);
}

void CUstream_st::Close() {
  const pinfeed::MutexLock lock(mutex_);
  closed_ = true;
  changed_.NotifyAll();
}

void CUstream_st::Run() {
  pthread_setname_np(pthread_self(), "stand-in-stream");
  mutex_.Lock();
  while (true) {
    while (queue_.empty() && !closed_) changed_.Wait(mutex_);
    if (queue_.empty()) break;
    {
      const Work work = std::move(queue_.front());
      queue_.pop_front();
      mutex_.Unlock();
      if (context_.error == CUDA_SUCCESS) {
        if (const CUresult result = work(); result != CUDA_SUCCESS) context_.Break(result);
      }
    }  // what the work holds goes before it counts as finished
    mutex_.Lock();
    ++finished_;
    changed_.NotifyAll();
  }
  mutex_.Unlock();
}

namespace pinfeed::stand_in {

std::shared_ptr<CUstream_st> StreamOf(CUctx_st& context, CUstream handle) {
  const MutexLock lock(g_state.mutex);
  // Of the threads' own streams there is the main thread's alone, so that work on another one's shows.
  if (handle == CU_STREAM_PER_THREAD && ::gettid() != ::getpid()) return nullptr;
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    auto& stream = g_state.null_streams[&context];
    if (stream == nullptr) stream = CUstream_st::Start(context);
    return stream;
  }
  const auto found = g_state.streams.find(handle);
  return found != g_state.streams.end() && &found->second->context() == &context ? found->second : nullptr;
}

namespace {

// The point that the event stands for; nothing when it does not exist.
std::optional<CUevent_st> EventOf(CUevent handle) {
  const MutexLock lock(g_state.mutex);
  const auto found = g_state.events.find(handle);
  return found != g_state.events.end() ? std::optional<CUevent_st>(*found->second) : std::nullopt;
}

}  // namespace

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int /*priority*/) {
  PF_STAND_IN_CONTEXT_CALL(cuStreamCreateWithPriority);
  if (stream == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<CUstream_st> made = CUstream_st::Start(*context);
  const MutexLock lock(g_state.mutex);
  g_state.streams[made.get()] = made;
  *stream = made.get();
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle) {
  PF_STAND_IN_CONTEXT_CALL(cuStreamDestroy);
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return CUDA_ERROR_INVALID_HANDLE;
  const std::shared_ptr<CUstream_st> stream = StreamOf(*context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const MutexLock lock(g_state.mutex);
  g_state.streams.erase(handle);
  stream->Close();  // what is queued still runs
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  PF_STAND_IN_CONTEXT_CALL(cuStreamSynchronize);
  const std::shared_ptr<CUstream_st> stream = StreamOf(*context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  stream->Wait(stream->Pushed());
  return context->error;
}

CUresult cuStreamQuery(CUstream handle) {
  PF_STAND_IN_CONTEXT_CALL(cuStreamQuery);
  const std::shared_ptr<CUstream_st> stream = StreamOf(*context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!stream->IsFinished(stream->Pushed())) return CUDA_ERROR_NOT_READY;
  return context->error;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  PF_STAND_IN_CONTEXT_CALL(cuStreamIsCapturing);
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (StreamOf(*context, handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *status = g_state.capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  PF_STAND_IN_CONTEXT_CALL(cuCtxSynchronize);
  std::vector<std::shared_ptr<CUstream_st>> streams;
  {
    const MutexLock lock(g_state.mutex);
    for (const auto& [handle, stream] : g_state.streams) {
      if (&stream->context() == context) streams.push_back(stream);
    }
    const auto own = g_state.null_streams.find(context);
    if (own != g_state.null_streams.end()) streams.push_back(own->second);
  }
  for (const auto& stream : streams) stream->Wait(stream->Pushed());
  return context->error;
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  PF_STAND_IN_CONTEXT_CALL(cuEventCreate);
  constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
  if ((flags & CU_EVENT_INTERPROCESS) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (event == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_unique<CUevent_st>();
  made->context = context;
  *event = made.get();
  const MutexLock lock(g_state.mutex);
  g_state.events.emplace(*event, std::move(made));
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  PF_STAND_IN_CONTEXT_CALL(cuEventDestroy);
  const MutexLock lock(g_state.mutex);
  return g_state.events.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
  PF_STAND_IN_CONTEXT_CALL(cuEventRecord);
  std::shared_ptr<CUstream_st> stream = StreamOf(*context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const MutexLock lock(g_state.mutex);
  const auto found = g_state.events.find(event);
  if (found == g_state.events.end() || found->second->context != context) return CUDA_ERROR_INVALID_HANDLE;
  // A piece of work of its own: the event is reached later even when the stream is idle.
  found->second->number = stream->Push([] { return CUDA_SUCCESS; });
  found->second->stream = std::move(stream);
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  PF_STAND_IN_CONTEXT_CALL(cuEventQuery);
  const std::optional<CUevent_st> point = EventOf(event);
  if (!point) return CUDA_ERROR_INVALID_HANDLE;
  if (point->stream != nullptr && !point->stream->IsFinished(point->number)) return CUDA_ERROR_NOT_READY;
  return point->context->error;
}

CUresult cuEventSynchronize(CUevent event) {
  PF_STAND_IN_CONTEXT_CALL(cuEventSynchronize);
  const std::optional<CUevent_st> point = EventOf(event);
  if (!point) return CUDA_ERROR_INVALID_HANDLE;
  if (point->stream != nullptr) point->stream->Wait(point->number);
  return point->context->error;
}

}  // namespace pinfeed::stand_in
