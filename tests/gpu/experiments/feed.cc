// SPDX-License-Identifier: Apache-2.0
#include "feed.h"

namespace pinfeed {
namespace {

struct Lane {
  Ring* ring = nullptr;
  CUdeviceptr base = 0;
  std::uint64_t next = 1;  // generation to copy next
  std::uint64_t done = 0;  // last one published
  CUevent copied[kSlots] = {};
};

}  // namespace

void RunFeeder(const FeedPlan& plan, const std::vector<int>& sockets, const std::vector<Ring*>& rings) {
  Gpu gpu;
  Offer offer;
  int fd = -1;
  Arena arena =
      ExportArena(gpu, plan.backend,
                  (plan.batch_bytes * kSlots * rings.size() + kGranularity - 1) / kGranularity * kGranularity,
                  &offer, &fd);
  auto* sources = static_cast<std::uint32_t*>(SharedMemory(plan.batch_bytes * kSources));
  const std::size_t words = plan.batch_bytes / 4;
  for (std::size_t seed = 0; seed < kSources; ++seed) {
    for (std::size_t i = 0; i < words; ++i)
      sources[seed * words + i] = std::uint32_t(i) * 2654435761U + std::uint32_t(seed) * 40503U;
  }
  CU(cuMemHostRegister(sources, plan.batch_bytes * kSources, 0));
  std::vector<Lane> lanes(rings.size());
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    lanes[i].ring = rings[i];
    lanes[i].base = arena.address + i * kSlots * plan.batch_bytes;
    for (CUevent& event : lanes[i].copied) CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  }
  for (int socket : sockets) SendMessage(socket, &offer, sizeof(offer), fd);
  std::size_t finished = 0;
  while (finished < lanes.size()) {
    finished = 0;
    for (Lane& lane : lanes) {
      const std::uint64_t slot = lane.next % kSlots;
      if (lane.next <= plan.batches &&
          (lane.next <= kSlots ||
           lane.ring->released[slot].generation.load(std::memory_order_acquire) == lane.next - kSlots)) {
        CU(cuMemcpyHtoDAsync(lane.base + slot * plan.batch_bytes, sources + (lane.next % kSources) * words,
                             plan.batch_bytes, gpu.stream));
        CU(cuEventRecord(lane.copied[slot], gpu.stream));
        ++lane.next;
      }
      if (lane.done + 1 < lane.next) {
        const CUresult copied =
            plan.announce_early ? CUDA_SUCCESS : cuEventQuery(lane.copied[(lane.done + 1) % kSlots]);
        if (copied == CUDA_SUCCESS) {
          lane.ring->published.store(++lane.done, std::memory_order_release);
        } else if (copied != CUDA_ERROR_NOT_READY) {
          CU(copied);
        }
      }
      finished += lane.done == plan.batches && lane.ring->released[lane.done % kSlots].generation == lane.done
                      ? 1
                      : 0;
    }
  }
  for (int socket : sockets) {
    int none = -1;
    char bye = 0;
    ReceiveMessage(socket, &bye, sizeof(bye), &none);  // the trainer has read its counter and unmapped
  }
}

void RunTrainer(const FeedPlan& plan, int socket, std::size_t index, Ring* ring) {
  Gpu gpu;
  Offer offer;
  int fd = -1;
  if (!ReceiveMessage(socket, &offer, sizeof(offer), &fd))
    Fail(__FILE__, __LINE__, "await the offer", "the feeder is gone");
  Arena arena;
  CU(ImportArena(gpu, offer, fd, true, &arena));
  if (fd >= 0) close(fd);
  CU(cuMemHostRegister(ring, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
  CUdeviceptr page = 0;
  CUdeviceptr wrong = 0;
  CU(cuMemHostGetDevicePointer(&page, ring, 0));
  CU(cuMemAlloc(&wrong, 8));
  CU(cuMemsetD32(wrong, 0, 2));
  const CUdeviceptr base = arena.address + index * kSlots * plan.batch_bytes;
  const unsigned blocks = plan.batch_bytes < (1 << 20) ? 16 : 264;
  for (std::uint64_t generation = 1; generation <= plan.batches; ++generation) {
    while (ring->published.load(std::memory_order_acquire) < generation) {
    }
    const std::uint64_t slot = generation % kSlots;
    CU(Launch(gpu.count_wrong, blocks, 256, gpu.stream, base + slot * plan.batch_bytes,
              std::uint64_t(plan.batch_bytes / 4), std::uint32_t(generation % kSources),
              int(generation / 16 % 2), wrong));
    const auto offset =
        CUdeviceptr(reinterpret_cast<char*>(&ring->released[slot]) - reinterpret_cast<char*>(ring));
    CU(cuStreamWriteValue64(gpu.stream, page + offset, generation, CU_STREAM_WRITE_VALUE_DEFAULT));
  }
  std::uint64_t count = 0;
  CU(cuStreamSynchronize(gpu.stream));
  CU(cuMemcpyDtoH(&count, wrong, 8));
  ring->wrong_words = count;
  CU(DropArena(&arena));
  const char bye = 1;
  SendMessage(socket, &bye, sizeof(bye), -1);
}

}  // namespace pinfeed
