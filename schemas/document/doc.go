// Package document says what the text of a document is: blocks in reading order, and the
// chunks that a splitter makes of them. It is pure; package read makes blocks from files.
//
// A token is an estimate that depends on the text alone (see Count), so a document is cut in
// the same places on every node and in every version of a model's tokenizer.
//
// The splitter holds one chunk in memory, whatever the size of the document.
package document
