// Package engine holds the tables of threads, runs and workflow runs: it describes the rows
// that package journal writes, and reads what an actor needs to continue: its rows, its open
// steps, the history for the model. It writes nothing itself. Its pool works under the system
// role, because an actor acts for the tenant in its address; every query names the tenant.
package engine
