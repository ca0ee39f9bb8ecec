// SPDX-License-Identifier: Apache-2.0
// Reads one epoch through the C++ interface and prints its number of samples. In: a dataset's path, a socket.
#include <cstdint>
#include <iostream>
#include <pinfeed/pinfeed.hpp>
#include <string>

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  pinfeed::FeedOptions options;
  options.address = argv[2];
  pinfeed::Feed feed(
      "{\"dataset\": {\"path\": \"" + std::string(argv[1]) + "\"}, \"batch_size\": 7, \"epochs\": 1}",
      options);
  uint64_t samples = 0;
  for (pinfeed::Batch& batch : feed) samples += batch.samples();
  std::cout << samples << '\n';
} catch (const pinfeed::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
