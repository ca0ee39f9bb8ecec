// SPDX-License-Identifier: Apache-2.0
#include "client/cli/command.h"

#include "client/cli/json_field.h"
#include "client/cli/text.h"

namespace pinfeed {

CLI::Validator Within(double min, double max) {
  return {[min, max](const std::string& text) -> std::string {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && value >= min && value <= max) return {};
            return Printable(text) + " is not a number from " + Json(min).dump() + " to " + Json(max).dump();
          },
          "NUMBER"};
}

}  // namespace pinfeed
