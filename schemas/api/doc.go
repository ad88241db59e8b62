// Package api holds the request and response types of the routes, and what they share: the
// query and the response of a list with its opaque cursor (service.md, Global conventions,
// Lists), and the optional members of PATCH bodies.
package api
