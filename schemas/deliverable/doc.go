// Package deliverable renders the final text of a run, which is Markdown, as a file: a workbook
// (xlsx), slides (pptx) or a page (html).
//
// The text comes from a model, so it is hostile: nothing in it is carried out, loaded or passed on
// as markup. A text in a cell is never a formula, raw HTML stays visible text, an image is its
// description, and a link leads to http, https or mailto. The Markdown reader is one of our own, in
// two linear passes without recursion: no input makes it slow or deep. A text that cannot be
// rendered within the limits is a *Fault, whose reason is safe to show: no row is dropped silently.
//
// A table becomes a chart too if the line above it is a mark:
//
//	<!-- chart: column -->
//
// The kinds are column, bar, line and pie. The first column names the categories, and each
// further column of numbers is a series (a pie has the first one only). A mark of another kind, or
// above a table without numbers, changes nothing. The same text, kind and time give the same
// bytes. The functions are pure.
package deliverable
