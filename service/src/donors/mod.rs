//! Donor discovery: whose cached prompt can a new one borrow from?
