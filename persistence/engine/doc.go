// Package engine reads what threads and runs need to continue: their rows, their open steps,
// the history for the model. It writes nothing (the journal does) and owns no table. Its pool
// works under the role system: an actor acts for the tenant in its address, and every query
// names the tenant first.
package engine
