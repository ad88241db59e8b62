// Package pdf reads the text of PDF files, page by page: lines in reading order with their
// relative size. It reads nothing else, so it is small, and each of its steps is bounded:
// bytes that streams expand to, operators, depth, references that lead in circles.
//
// It reads files as people have them: with cross-reference tables or streams, with a damaged
// table (objects are then found by a search), and encrypted with an empty password. A page that
// is damaged gives the text before the damage.
package pdf
