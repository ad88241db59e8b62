// Package failpoint names the moments at which a crash test kills the process: the boundaries
// of every commit.
//
// A package declares its points in variables and calls Hit where they lie. In a build without
// the tag failpoints Hit is empty and inlined. With the tag, SVC_FAILPOINT=name[:n] makes the
// n-th hit (default: the first) of that point kill the process with SIGKILL: nothing is
// flushed or closed. SVC_FAILPOINT=list makes the process print its points to standard
// error as it starts, one a line, each after Listed.
package failpoint

import (
	"slices"
	"sync"
)

// List is the value of SVC_FAILPOINT that lists the points, and Listed the beginning of
// their lines.
const (
	List   = "list"
	Listed = "failpoint "
)

// Point is the name of one moment, as package.moment.
type Point string

var declared struct {
	sync.Mutex
	names []string
}

// Declare registers a point, for a package variable. It panics if the name is taken.
func Declare(name string) Point {
	declared.Lock()
	defer declared.Unlock()
	if slices.Contains(declared.names, name) {
		panic("failpoint: " + name + " is declared twice")
	}
	declared.names = append(declared.names, name)
	list(name)
	return Point(name)
}

// Names lists the points of the packages linked into this binary, sorted: a
// crash test hits each of them once.
func Names() []string {
	declared.Lock()
	defer declared.Unlock()
	return slices.Sorted(slices.Values(declared.names))
}
