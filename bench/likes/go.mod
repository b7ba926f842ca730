module github.com/countd/countd/bench/likes

go 1.26
