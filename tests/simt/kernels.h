// The kernels as they run on the fake driver: compiled once, for all programs that include this.
#pragma once

// Makes every kernel known to the driver under its own name.
void enroll_kernels();
