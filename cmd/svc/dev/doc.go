// Package dev runs several nodes of a development service behind one address.
package dev
