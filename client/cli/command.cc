// SPDX-License-Identifier: Apache-2.0
#include "client/cli/command.h"

#include "client/cli/json_field.h"
#include "client/cli/text.h"

namespace pinfeed {

CLI::Validator Within(double least, double most) {
  return {[least, most](const std::string& text) -> std::string {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return {};
            return Printable(text) + " is no number from " + Json(least).dump() + " to " + Json(most).dump();
          },
          "NUMBER"};
}

}  // namespace pinfeed
