// SPDX-License-Identifier: Apache-2.0
#include "client/cli/command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>

#include "client/cli/json_field.h"
#include "client/cli/text.h"

namespace pinfeed {
namespace {

std::string Shown(double limit) {
  return limit == std::floor(limit) ? std::to_string(static_cast<int64_t>(limit)) : Json(limit).dump();
}

}  // namespace

CLI::Validator Within(double min, double max) {
  return {[min, max](const std::string& text) -> std::string {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && value >= min && value <= max) return {};
            return Printable(text) + " is not a number from " + Shown(min) + " to " + Shown(max);
          },
          "NUMBER"};
}

void PrintBeside(const std::string& output) {
  struct stat file {};
  struct stat out {};
  if (::stat(output.c_str(), &file) != 0 || ::fstat(STDOUT_FILENO, &out) != 0) return;
  if (S_ISCHR(file.st_mode)) return;  // a terminal, or /dev/null
  if (file.st_dev == out.st_dev && file.st_ino == out.st_ino) (void)::dup2(STDERR_FILENO, STDOUT_FILENO);
}

}  // namespace pinfeed
