/* For NVIDIA's header of this name, which the runtime's wheel lacks: its annotations, of which gcc needs none. */
#pragma once
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __host__
#define __device__
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
