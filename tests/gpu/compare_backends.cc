// SPDX-License-Identifier: Apache-2.0
// A feed on the GPU, by each of its backends, and one on the host, of equal specs: every batch must have the
// same bytes (I4).
//
//   compare_backends ADDRESS BATCHES SPEC_JSON...      (specs that name no backend)
//
// Exit status 0: all equal. 1: not, or something failed; the first difference is named.
#include <cstring>

#include "tests/gpu/trainer.h"

namespace pinfeed {
namespace {

void Compare(const char* address, const char* spec, const char* backend, long batches, TrainerGpu& gpu) {
  const std::string gpu_spec = "{\"backend\":\"" + std::string(backend) + "\"," + (spec + 1);
  TrainerFeed on_gpu(address, gpu_spec.c_str(), &gpu);
  TrainerFeed on_host(address, spec, nullptr);
  if (on_gpu.outputs().size() != on_host.outputs().size()) Fail("the feeds have different outputs");
  for (long n = 0; n < batches; ++n) {
    on_gpu.Shift(static_cast<uint64_t>(n) % 5);
    const pf_batch_info a = on_gpu.Next();
    const pf_batch_info b = on_host.Next();
    if (a.epoch != b.epoch || a.index != b.index || a.samples != b.samples) Fail("the feeds are out of step");
    for (size_t i = 0; i < on_gpu.outputs().size(); ++i) {
      const pf_tensor& one = on_gpu.outputs()[i];
      const pf_tensor& other = on_host.outputs()[i];
      if (std::strcmp(one.name, other.name) != 0 || one.dtype != other.dtype || one.bytes != other.bytes)
        Fail(std::string("output ") + one.name + " is not the same tensor");
      if (on_gpu.Rows(i) != on_host.Rows(i)) Fail(std::string("output ") + one.name + " has other rows");
      const uint64_t bytes = on_gpu.SampleBytes(i) * on_gpu.Rows(i);
      const std::byte* const x = on_gpu.OnHost(i);
      const std::byte* const y = on_host.OnHost(i);
      for (uint64_t at = 0; at < bytes; ++at) {
        if (x[at] == y[at]) continue;
        Fail(std::string("batch ") + std::to_string(n) + ", output " + one.name + ", byte " +
             std::to_string(at) + " of " + std::to_string(bytes) + ": " +
             std::to_string(static_cast<int>(x[at])) + " on the GPU, " +
             std::to_string(static_cast<int>(y[at])) + " on the host; spec " + gpu_spec);
      }
    }
  }
  std::printf("equal over %ld batches: %s\n", batches, gpu_spec.c_str());
}

}  // namespace
}  // namespace pinfeed

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s ADDRESS BATCHES SPEC_JSON...\n", argv[0]);
    return 2;
  }
  pinfeed::TrainerGpu gpu;
  for (int i = 3; i < argc; ++i) {
    for (const char* backend : {"VMM_FD", "CUDA_IPC"})
      pinfeed::Compare(argv[1], argv[i], backend, std::atol(argv[2]), gpu);
  }
  return 0;
}
