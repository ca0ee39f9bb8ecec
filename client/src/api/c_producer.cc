// SPDX-License-Identifier: Apache-2.0
// The functions of pinfeed.h for producers. They check the arguments; Producer does the work.
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "client/src/api/c_api.h"
#include "client/src/api/c_tensor.h"
#include "client/src/base/end_with_process.h"
#include "client/src/feed/producer.h"

struct pf_producer {
  std::unique_ptr<pinfeed::Producer> producer;
};

namespace pinfeed {
namespace {

Status CheckProducer(const pf_producer* producer) {
  return producer == nullptr ? InvalidArgument("producer is NULL") : OkStatus();
}

// Returns the open task that the caller names. Only its number counts.
Result<ProducerTask> FindTask(const pf_producer* producer, const pf_task* task) {
  RETURN_IF_ERROR(CheckProducer(producer));
  if (task == nullptr || task->size < offsetof(pf_task, task) + sizeof(task->task))
    return InvalidArgument("task is NULL or was not prepared with pf_task_init");
  return producer->producer->Find(task->task);
}

pf_task DescribeTask(const Producer& producer, const ProducerTask& task) {
  pf_task values{};
  values.task = task.task;
  values.epoch = task.epoch;
  values.batch_index = task.batch_index;
  values.samples = task.samples;
  values.tensor_count = static_cast<uint32_t>(producer.layout().tensors.size());
  values.sample_ids = reinterpret_cast<const int64_t*>(producer.Address(task, producer.sample_ids()));
  return values;
}

}  // namespace
}  // namespace pinfeed

using namespace pinfeed;  // NOLINT(google-build-using-namespace): this file is the border of the namespace

extern "C" {

pf_result pf_producer_attach(const void* invitation, size_t size, pf_producer** producer) {
  return Guarded([&]() -> Status {
    if (producer == nullptr) return InvalidArgument("producer is NULL; give the address of a pf_producer*");
    *producer = nullptr;
    if (invitation == nullptr) return InvalidArgument("invitation is NULL");
    const SteadyTime deadline = std::chrono::steady_clock::now() + kCallTimeout;
    ASSIGN_OR_RETURN(Invitation parsed,
                     ParseInvitation({static_cast<const char*>(invitation), size}, deadline));
    ASSIGN_OR_RETURN(std::unique_ptr<Producer> attached, Producer::Attach(std::move(parsed), deadline));
    *producer = new pf_producer{std::move(attached)};
    return OkStatus();
  });
}

void pf_producer_close(pf_producer* producer) {
  (void)Guarded([&]() -> Status {
    delete producer;
    return OkStatus();
  });
}

pf_result pf_producer_next(pf_producer* producer, int64_t timeout_ms, pf_task* task) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(CheckProducer(producer));
    // Checked first, since a task taken before a failure would be lost.
    RETURN_IF_ERROR(FillStruct(task, pf_task{}, "pf_task_init"));
    ASSIGN_OR_RETURN(const auto timeout, ReadTimeout(timeout_ms));
    ASSIGN_OR_RETURN(const ProducerTask next, producer->producer->Next(Deadline(timeout)));
    return FillStruct(task, DescribeTask(*producer->producer, next), "pf_task_init");
  });
}

pf_result pf_producer_tensor(const pf_producer* producer, const pf_task* task, uint32_t index,
                             pf_tensor* tensor) {
  return Guarded([&]() -> Status {
    ASSIGN_OR_RETURN(const ProducerTask open, FindTask(producer, task));
    const BatchLayout& layout = producer->producer->layout();
    if (index >= layout.tensors.size()) {
      return InvalidArgument("tensor " + std::to_string(index) + " of a task that has " +
                             std::to_string(layout.tensors.size()));
    }
    const TensorPlace& place = layout.tensors[index];
    pf_tensor values = DescribeDense(place.spec, open.samples, layout.batch_size);
    values.data = producer->producer->Address(open, place);
    values.bytes = place.sample_bytes * open.samples;
    values.device = -1;
    values.writable = 1;
    return FillTensor(tensor, values);
  });
}

pf_result pf_producer_memory(pf_producer* producer, const pf_task* task, uint64_t bytes, int* fd) {
  return Guarded([&]() -> Status {
    if (fd == nullptr) return InvalidArgument("fd is NULL; give the address of an int");
    *fd = -1;
    ASSIGN_OR_RETURN(const ProducerTask open, FindTask(producer, task));
    ASSIGN_OR_RETURN(UniqueFd memory, producer->producer->Memory(open.task, bytes, Deadline(kCallTimeout)));
    *fd = memory.release();
    return OkStatus();
  });
}

pf_result pf_producer_done(pf_producer* producer, const pf_task* task, const char* error) {
  return Guarded([&]() -> Status {
    ASSIGN_OR_RETURN(const ProducerTask open, FindTask(producer, task));
    return producer->producer->Done(open.task, error == nullptr ? OkStatus() : DataLoss(error));
  });
}

pf_result pf_producer_end_of_data(pf_producer* producer, const pf_task* task) {
  return Guarded([&]() -> Status {
    ASSIGN_OR_RETURN(const ProducerTask open, FindTask(producer, task));
    return producer->producer->Done(open.task, Status(Code::kOutOfRange, "the data end before this batch"));
  });
}

pf_result pf_end_with_process(int pidfd) {
  return Guarded([&] { return EndWithProcess(pidfd); });
}

}  // extern "C"
