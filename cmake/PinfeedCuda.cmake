# SPDX-License-Identifier: Apache-2.0
# Whether the GPU path is built. It takes types and names from cuda.h and loads the driver at run time: no CUDA library is linked,
# and what is built starts on machines without a GPU. Sets PINFEED_HAVE_CUDA and PINFEED_CUDA_INCLUDE_DIR.
set(PINFEED_HAVE_CUDA OFF)
if(NOT PINFEED_CUDA STREQUAL "OFF")
  find_path(PINFEED_CUDA_INCLUDE_DIR cuda.h
    HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include
    DOC "The folder of cuda.h (CUDA Toolkit 11.7 or later)")
  if(PINFEED_CUDA_INCLUDE_DIR)
    set(PINFEED_HAVE_CUDA ON)
    message(STATUS "GPU path: built, with ${PINFEED_CUDA_INCLUDE_DIR}/cuda.h")
  elseif(PINFEED_CUDA STREQUAL "ON")
    message(FATAL_ERROR "PINFEED_CUDA=ON, but there is no cuda.h: install the CUDA Toolkit, or name its folder by "
      "-DPINFEED_CUDA_INCLUDE_DIR=... or $CUDA_HOME")
  else()
    message(STATUS "GPU path: not built (no cuda.h; -DPINFEED_CUDA_INCLUDE_DIR=... names its folder)")
  endif()
endif()
