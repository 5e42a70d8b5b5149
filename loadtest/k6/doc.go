// Package k6 holds the load scripts for people, written for k6 and run by it; README.md says which answers what. It has
// no code; its tests keep the scripts typed and, where there is a k6, valid and passing.
package k6
