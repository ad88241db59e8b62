// Package parser reads the text of documents in child processes, so that a file that needs too
// much memory or time costs its child and nothing else. A text of at most Config.Inline bytes is
// read where it is: its cost is bounded by its size, and a child takes longer to start.
//
// A child is this binary with the command Command. It gets the file as a descriptor, reads it with
// schemas/document/read, cuts it into chunks and writes these to its standard output, one frame
// each. It lowers its own priority and limits its own CPU time before it reads, and its parent
// watches its memory.
//
// Limits: Config.Most children at a time, others wait; a child has Config.Memory and Config.CPU, and
// is killed when it writes nothing for Config.Silence, when the caller's context ends, and with its
// parent. Only what the file is the reason of is a fault: its memory, its CPU time, not the silence of a child that the machine has no
// time for, nor its death when the machine has no memory left. Order: chunks come in the order of their positions. Loss: a parse that ends without nil is
// to be begun again from the start.
package parser
