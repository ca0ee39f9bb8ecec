// SPDX-License-Identifier: Apache-2.0
#include "client/src/offer.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "client/include/pinfeed/pinfeed.h"

namespace pinfeed {
namespace {

Status Broken(const std::string& what) {
  return Internal("the daemon's offer is unusable: " + what +
                  "; are pinfeedd and libpinfeed of the same version?");
}

Status CheckTensor(const TensorPlace& tensor, const BatchLayout& layout, uint64_t* end) {
  const std::string name = "tensor '" + tensor.spec.name + "'";
  if (tensor.spec.name.empty() || tensor.spec.name.find('\0') != std::string::npos)
    return Broken("a tensor has no usable name");
  if (tensor.spec.shape.size() >= PF_MAX_DIMS)
    return Broken(name + " has " + std::to_string(tensor.spec.shape.size()) + " dimensions");
  const Result<uint64_t> sample_bytes = tensor.spec.SampleBytes();
  if (!sample_bytes.ok()) return Broken(sample_bytes.status().message());
  if (*sample_bytes != tensor.sample_bytes) {
    return Broken(name + " has samples of " + std::to_string(tensor.sample_bytes) +
                  " bytes where its shape has " + std::to_string(*sample_bytes));
  }
  if (tensor.offset % kTensorAlignment != 0)
    return Broken(name + " starts at the unaligned offset " + std::to_string(tensor.offset));
  uint64_t bytes = 0;
  if (!CheckedMul(tensor.sample_bytes, layout.batch_size, &bytes) || !CheckedAdd(tensor.offset, bytes, end) ||
      *end > layout.slot_stride) {
    return Broken(name + " ends behind its slot of " + std::to_string(layout.slot_stride) + " bytes");
  }
  return OkStatus();
}

}  // namespace

Status CheckOffer(FeedOffer& offer) {
  BatchLayout& layout = offer.layout;
  if (offer.backend != Backend::kHost) {
    return {Code::kUnimplemented,
            std::string("the daemon offers memory of the backend ") + BackendName(offer.backend) +
                ", which this build of libpinfeed cannot map; ask for the backend HOST"};
  }
  if (layout.batch_size == 0) return Broken("batch_size is 0");
  if (offer.slot_count == 0 || offer.slot_count > kMaxSlots) {
    return Broken(std::to_string(offer.slot_count) + " slots, where 1 to " + std::to_string(kMaxSlots) +
                  " are possible");
  }
  uint64_t arena = 0;
  if (layout.slot_stride == 0 || layout.slot_stride % kTensorAlignment != 0 ||
      !CheckedMul(layout.slot_stride, offer.slot_count, &arena) || arena > offer.arena_bytes) {
    return Broken(std::to_string(offer.slot_count) + " slots of " + std::to_string(layout.slot_stride) +
                  " bytes in an arena of " + std::to_string(offer.arena_bytes));
  }
  if (layout.tensors.empty()) return Broken("no tensors");
  std::set<std::string_view> names;
  layout.slot_bytes = 0;
  for (const TensorPlace& tensor : layout.tensors) {
    uint64_t end = 0;
    RETURN_IF_ERROR(CheckTensor(tensor, layout, &end));
    layout.slot_bytes = std::max(layout.slot_bytes, end);
    if (!names.insert(tensor.spec.name).second)
      return Broken("two tensors are named '" + tensor.spec.name + "'");
  }
  if (offer.lifeline_path.empty() || offer.lifeline_path.front() != '/') {
    return Broken("the lifeline's path '" + offer.lifeline_path + "' is not absolute");
  }
  return OkStatus();
}

Status CheckSameFeed(const FeedOffer& before, const FeedOffer& now) {
  if (before.fingerprint != now.fingerprint) {
    return FailedPrecondition("the dataset changed while the daemon was away (fingerprint " +
                              before.fingerprint + ", now " + now.fingerprint +
                              "); the position in it means nothing any more: open a new feed");
  }
  if (before.layout.tensors != now.layout.tensors || before.layout.batch_size != now.layout.batch_size) {
    return FailedPrecondition(
        "the daemon came back with other tensors than this feed was opened with (was it upgraded?); open a "
        "new feed");
  }
  return OkStatus();
}

const char* BackendName(Backend backend) {
  switch (backend) {
    case Backend::kHost:
      return "host";
    case Backend::kCudaIpc:
      return "cuda-ipc";
    case Backend::kVmmFd:
      return "vmm-fd";
    case Backend::kAuto:
      break;
  }
  return "unknown";
}

}  // namespace pinfeed
