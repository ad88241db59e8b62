// Package engine reads what threads and runs need to go on: their rows, their
// open steps, the history that a model is shown. It writes nothing (that is the
// journal's) and owns no table. Its pool works under the role system: an actor
// acts for the tenant that its address names, and every query names the tenant
// first.
package engine
