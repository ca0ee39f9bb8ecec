// SPDX-License-Identifier: Apache-2.0
//
// Are cuda-ipc handles of memory that was freed and allocated again ever the same bytes, and what does a
// trainer get that opens an old one?
#include <cstring>
#include <set>
#include <string>

#include "worker.h"

namespace pinfeed {
namespace {

void Run(Report* report) {
  const char* scenario = "cuda-ipc";
  constexpr int kRounds = 100;
  Worker daemon;
  Worker client;
  const auto make = [&](std::uint64_t seed) {
    return daemon
        .Call({.op = Op::kExport, .bytes = 4 << 20, .seed = seed, .offer = {Backend::kLegacy, 0, {}}})
        .offer;
  };
  const auto same = [](const Offer& a, const Offer& b) {
    return std::memcmp(&a.legacy, &b.legacy, sizeof(a.legacy)) == 0;
  };
  report->Say(scenario, "the exporter opens its own handle",
              CuName(daemon.Call({.op = Op::kImport, .index = 1, .offer = make(1)}).result));
  CU(daemon.Call({.op = Op::kDrop}).result);
  std::set<std::string> handles;
  int wrong = 0;
  Offer last{};
  for (int i = 0; i < kRounds; ++i) {
    const Offer offer = make(std::uint64_t(i) + 100);
    handles.emplace(reinterpret_cast<const char*>(&offer.legacy), sizeof(offer.legacy));
    last = offer;
    CU(client.Call({.op = Op::kImport, .offer = offer}).result);
    const Answer check = client.Call({.op = Op::kVerify, .seed = std::uint64_t(i) + 100});
    wrong += check.result != CUDA_SUCCESS || check.value != 0 ? 1 : 0;
    CU(client.Call({.op = Op::kDrop}).result);
    CU(daemon.Call({.op = Op::kDrop}).result);
  }
  report->Say(scenario, "different handles in 100 rounds of allocate, open, close, free",
              std::to_string(handles.size()));
  report->Rely(scenario, "rounds with wrong bytes", std::to_string(wrong), wrong == 0);
  report->Say(scenario, "opening the handle of freed memory",
              CuName(client.Call({.op = Op::kImport, .offer = last}).result));
  const Offer next = make(7);
  const Answer stale = client.Call({.op = Op::kImport, .index = 1, .offer = last});
  std::string seen = CuName(stale.result);
  if (stale.result == CUDA_SUCCESS) {
    const Answer check = client.Call({.op = Op::kVerify, .index = 1, .seed = 7});
    seen += check.value == 0 ? ", shows the new memory" : ", shows other bytes";
  }
  report->Say(scenario, "opening it once the memory is allocated again",
              seen + (same(next, last) ? " (same handle)" : ""));
}

}  // namespace
}  // namespace pinfeed

int main() {
  pinfeed::LoadKernelImage();
  pinfeed::Report report("9 handle re-use");
  pinfeed::Run(&report);
  return report.ExitStatus();
}
