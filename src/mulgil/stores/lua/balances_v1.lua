-- What key and tenant have used.
save()
return balances()
