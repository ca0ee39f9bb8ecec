// SPDX-License-Identifier: Apache-2.0
// Prints docs/metrics.md. Used by the build; not installed.
#include <iostream>

#include "server/metrics/metric_table.h"

int main() {
  std::cout << pinfeed::MetricsPage() << std::flush;
  return std::cout.good() ? 0 : 1;
}
