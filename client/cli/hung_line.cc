// SPDX-License-Identifier: Apache-2.0
#include "client/cli/hung_line.h"

#include <algorithm>

#include "client/cli/text.h"

namespace pinfeed {

std::string HungLine(const Json& status) {
  const Json& hung = ListField(status, "hung");
  if (hung.empty()) return {};
  const Json& longest = *std::max_element(hung.begin(), hung.end(), [](const Json& a, const Json& b) {
    return DoubleField(a, "seconds") < DoubleField(b, "seconds");
  });
  const std::string age = Duration(DoubleField(longest, "seconds"));
  std::string line = TextField(longest, "thread") + " hangs: ";
  if (const std::string gpu = TextField(longest, "gpu"); !gpu.empty()) {
    line += "none of its copies to " + gpu + " has ended for " + age;
  } else if (const std::string operation = TextField(longest, "operation"); !operation.empty()) {
    line += operation + " for " + age;
  } else {
    const std::string sample = TextField(longest, "sample");
    line += "at sample " + std::to_string(UintField(longest, "sample_id")) + " of feed " +
            std::to_string(UintField(longest, "feed_id")) + (sample.empty() ? "" : " (" + sample + ")") +
            " for " + age + "; does its storage answer?";
  }
  if (hung.size() > 1) line += " Also hanging: " + Counted(hung.size() - 1, "more thread") + ".";
  return Printable(line);
}

}  // namespace pinfeed
