J
çÖ!cn¦eny