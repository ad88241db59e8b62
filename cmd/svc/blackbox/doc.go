// Package blackbox tests the service as tenants and operators see it. Its tests build the
// binary, run it as processes of its own, alone and in clusters, and use it through its
// HTTP API, its command line, its files and its signals, while processes are killed and
// paused, networks are cut, and faults are planted. It knows nothing of the parts inside.
//
// Tests with the tag storm run clusters under load (make storm); tests with the tag
// failpoints kill the process at named points (make crash).
package blackbox
