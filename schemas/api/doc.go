// Package api holds the shapes that all routes share: the query and the answer
// of a list with its opaque cursor (service.md, Global conventions, Lists), and
// the optional members of PATCH bodies.
package api
