// SPDX-License-Identifier: Apache-2.0
// Preloaded into `telltale run`: it gets no thread, as where a limit on processes is reached.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include "supervisor_only.h"

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
  if (IsSupervisor()) return EAGAIN;
  int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) = (int (*)(
      pthread_t*, const pthread_attr_t*, void* (*)(void*), void*))dlsym(RTLD_NEXT, "pthread_create");
  return real(thread, attributes, start, argument);
}
