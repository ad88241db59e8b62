// Package read makes blocks of text from files: txt, md, html, pdf, docx, pptx, xlsx, csv and
// json. The content decides what a file is; its name is a hint only (see Read).
//
// Files come from strangers. Each reader streams, bounds what it keeps in memory and what it
// expands, follows no reference out of the file, and ends with a *document.Fault that tells a
// person what is wrong. Memory and time as a whole are bounded by package transport/parser,
// which runs this package in a process of its own.
package read
