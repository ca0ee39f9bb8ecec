// SPDX-License-Identifier: Apache-2.0
// `pinfeed doctor` in a build without CUDA.
#include <cstdio>

#include "client/cli/doctor.h"

namespace pinfeed {

void ExamineGpus(DoctorReport& report, const DoctorProgress& /*progress*/) {
  report.Note("GPU", "this pinfeed was built without CUDA (PINFEED_CUDA): batches stay in host memory");
}

std::string PlotCopies(const DoctorReport& /*report*/) {
  return {};
}

int Probe(const ProbedMemory& /*probed*/) {
  std::fputs("this pinfeed was built without CUDA\n", stderr);
  return 1;
}

}  // namespace pinfeed
