// SPDX-License-Identifier: Apache-2.0
// Reads one epoch through the C interface and prints its number of samples. In: a dataset's path, a socket.
#include <inttypes.h>
#include <pinfeed/pinfeed.h>
#include <stdio.h>

int main(int argc, char** argv) {
  if (argc != 3 || pf_version() != PF_VERSION) return 2;
  char spec[4096];
  snprintf(spec, sizeof spec, "{\"dataset\": {\"path\": \"%s\"}, \"batch_size\": 7, \"epochs\": 1}", argv[1]);
  pf_open_options options;
  pf_open_options_init(&options, sizeof options);
  options.spec_json = spec;
  options.address = argv[2];
  pf_feed* feed = NULL;
  pf_batch* batch = NULL;
  uint64_t samples = 0;
  pf_result result = pf_open(&options, &feed);
  while (result == PF_OK && (result = pf_next(feed, -1, &batch)) == PF_OK) {
    pf_batch_info info;
    pf_batch_info_init(&info, sizeof info);
    result = pf_get_batch_info(batch, &info);
    samples += info.samples;
    pf_batch_release(batch);
  }
  if (result != PF_OUT_OF_RANGE) fprintf(stderr, "%s\n", pf_last_error());
  pf_close(feed);
  printf("%" PRIu64 "\n", samples);
  return result == PF_OUT_OF_RANGE ? 0 : 1;
}
